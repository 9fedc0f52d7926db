"""What a site allows: its policy, held against what is asked."""
