"""What is trained: the `Task` type, the models, and the catalog of named tasks."""
