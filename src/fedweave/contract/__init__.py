"""What every algorithm owes its users, as laws that can be tried on one from outside the package."""
