"""Other people's models on these ops. Each module is imported by name: what it integrates is an optional dependency."""
