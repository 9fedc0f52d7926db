"""What is done to values before they leave, and what it guarantees."""
