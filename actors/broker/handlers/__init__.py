"""What a broker does with each request, one file per family; `handlers` of each is what its server is given."""
