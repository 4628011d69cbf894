"""The verbs clients of the lab: C programs that check every byte and completion, and how to build and read them."""
