"""What the broker keeps of POP besides the log: who pops, and which queues ordered pops have locked."""
