"""What a model computes, written down as a graph of operations on tensors."""
