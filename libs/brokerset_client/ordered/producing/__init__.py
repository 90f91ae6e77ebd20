"""The producer of ordered subjects: pure state machines (`subject`, `executor`), and what runs them."""
