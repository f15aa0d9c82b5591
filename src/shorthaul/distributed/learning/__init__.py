"""Tables that are trained: rows read from anywhere, gradients applied by those who own them."""
