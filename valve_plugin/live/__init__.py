"""A person's own runs of mini: what they start from, the attempts they leave, and the check that grades them."""
