"""Task sets: load, import, split, verify; make/ makes new ones, grading/ grades patches."""
