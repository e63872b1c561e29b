"""The web console: files built from `console/`, served as they are. They use the public API."""
