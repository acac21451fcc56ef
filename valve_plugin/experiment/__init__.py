"""The paper's experiments: conditions side by side, on the same tasks, with the same model."""
