"""A small Llama-shaped model without its module machinery: decoding, and a forward pass in the graph."""
