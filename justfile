# Daily commands, for `just` (https://just.systems): `just test`, `just seed 42`. Without `just`, type the commands themselves.

export CARGO_INCREMENTAL := "0"

# List the recipes
_default:
    @just --list --unsorted

# Run all tests on the embedded engine, or those that match: `just test --test sqs`
test *ARGUMENTS:
    cargo test --workspace {{ ARGUMENTS }}

# Format, then check formatting and lints as CI does
lint:
    cargo fmt --all
    .ci/run format lint spelling links

# Build the documentation, with warnings as errors
docs:
    .ci/run documentation

# Accept changed snapshots of what the program prints; review them with `git diff`
snapshots:
    INSTA_UPDATE=always cargo test --workspace --test output

# Repeat the history of one seed
seed N:
    LOCK_SEED={{ N }} cargo test --workspace --test histories the_guarantees -- --nocapture

# Search thousands of histories, and try every mutation
search:
    .ci/run histories

# Run this many histories
histories N:
    LOCK_HISTORIES={{ N }} cargo test --workspace --test histories

# Run the tests of behaviours on DynamoDB Local; needs Java
dynamodb-local:
    .ci/run dynamodb_local

# Kill and stop processes until so many acquisitions, and write target/chaos.md; needs Java and faketime
chaos N="0":
    LOCK_CHAOS={{ N }} .ci/run chaos

# Compare with the bare SDK: `just bench`, `just bench faults`
bench NAME="lock":
    cargo bench --bench {{ NAME }}

# Run the checks, or the named steps: `just ci template deployed`; `just ci --list` says what each needs
ci *STEPS:
    .ci/run {{ STEPS }}

# Compare the public API with that of the newest release, or of a revision
public-api *REVISION:
    .ci/public-api {{ REVISION }}
