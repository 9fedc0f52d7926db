"""What passes between a server and sites: requests, answers, parcels, and the journal of them."""
