"""What a job's server and its administrator call the same things."""

RESULT, TOPIC = "fedweave", "fedweave"  # the folder of a job's results, and of messages to a running job
