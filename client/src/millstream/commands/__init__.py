"""The commands of `millstream`, a module for each group of them."""
