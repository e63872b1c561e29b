"""What a backend must guarantee to nodes besides the fabric itself."""
