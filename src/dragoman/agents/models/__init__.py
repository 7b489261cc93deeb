"""Chat models: what a model agent asks, and who answers. One module per kind of model."""
