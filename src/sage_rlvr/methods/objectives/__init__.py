"""Methods that share a file: other losses, functions of P(right), some right answers preferred, stored answers, no verifier."""
