"""Data that `raymq demo` reads without `--input`; datasets/README.md says where it comes from."""
