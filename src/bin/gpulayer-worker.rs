fn main() {
    gpulayer::process::run_if_shim();
}
