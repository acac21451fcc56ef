"""JSON Schemas: the contract for everything on disk or from a model."""
