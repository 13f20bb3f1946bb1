"""The grammars and word lists that the corpus of the demo model is composed from. All of it was written for this."""
