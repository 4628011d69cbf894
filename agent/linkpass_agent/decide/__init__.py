"""Plans from verdicts. Pure: a plan is a value that can be printed."""
