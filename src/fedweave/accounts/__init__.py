"""Accounts and statements of what members are owed, and what they brought."""
