"""Studies of parts: of the KL term (`anchor`) and of the guides (`guides`), each with its command and figures."""
