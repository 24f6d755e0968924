"""The numpy backend: slow, plain, and the definition of every op. Other backends are held against it."""
