"""What an engine can be asked about itself: does it keep its promises, how well does it predict."""
