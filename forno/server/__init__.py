"""OpenAI's API over HTTP. It knows the engine's asynchronous front and the text side, and nothing of scheduling or kernels."""
