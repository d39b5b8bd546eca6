"""Made by `make proto` from `quiver.proto`; never edited by hand."""
