"""What screens are made of; a widget draws values and knows no screen."""
