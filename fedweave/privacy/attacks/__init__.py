"""What somebody who receives noisy values can still find out: attacks to hold defences against."""
