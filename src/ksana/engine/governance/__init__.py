"""Moving parts of governance: hand-outs and ends as transactions, and the loops beside them."""
