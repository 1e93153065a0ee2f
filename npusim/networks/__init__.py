"""Networks: the calls of all layers, and reports of them."""
