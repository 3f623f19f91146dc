"""Reading and writing embeddings, labels and results; the sample collection."""
