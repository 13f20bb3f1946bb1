//! The tests beside this are all there is: see `docs/tools.md`.
