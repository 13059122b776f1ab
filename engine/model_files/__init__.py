"""Reading of model files, shared by the API process and the engine process."""
