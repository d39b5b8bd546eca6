"""Made by `make proto` from `proto/quiver/v1/quiver.proto`; never edited by hand."""
