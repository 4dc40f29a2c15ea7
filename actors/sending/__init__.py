"""What every sender needs: routes, choice of a queue, tries, numbers. Knows no broker."""
