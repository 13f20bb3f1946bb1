"""From logits to the next token, and from it to the hidden states that the next step begins with."""
