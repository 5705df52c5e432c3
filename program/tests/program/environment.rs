//! What the program reads of the environment for the AWS SDK: credentials, profiles, endpoint, retries, certificates.

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::ffi::OsStringExt as _;
use std::process::Command;
use std::sync::Arc;
use std::thread;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::server::{DENIED, recording_server, server};
use crate::{Outcome, PATIENCE, PROGRAM, Place, Process, bare, credentials};

/// The command `get` on a server, with the credentials of tests.
fn get(endpoint: &str) -> Command {
    let mut command = bare(PROGRAM);
    command.args(["get", "job", "--table", "locks"]).envs(credentials()).env("AWS_ENDPOINT_URL", endpoint);
    command
}

/// The same, with a file of profiles instead.
fn get_with_profiles(endpoint: &str, place: &Place, profiles: &str) -> Command {
    let config = place.file("config");
    fs::write(&config, profiles).unwrap();
    let mut command = get(endpoint);
    command.env_remove("AWS_ACCESS_KEY_ID").env_remove("AWS_SECRET_ACCESS_KEY").env("AWS_CONFIG_FILE", config);
    command
}

fn outcome(mut command: Command, variables: &[(&str, &str)]) -> Outcome {
    command.envs(variables.iter().copied());
    Process::start(command).outcome()
}

#[test]
fn missing_credentials_are_named() {
    let mut command = get("http://127.0.0.1:1");
    command.env_remove("AWS_ACCESS_KEY_ID");
    Process::start(command).outcome().expect_code(78).expect_sentence(&["credentials"]);
}

#[test]
fn an_invalid_endpoint_is_named() {
    for endpoint in ["localhost:8000", "ftp://localhost", "http://", "http://:8000", "http://local host", "http://[::1"]
    {
        for variable in ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_DYNAMODB"] {
            let refused = outcome(get("http://127.0.0.1:1"), &[(variable, endpoint)]).expect_code(78);
            refused.expect_sentence(&[variable, endpoint, "http://localhost:8000"]);
        }
        let mut command = bare(PROGRAM);
        command.args(["get", "job", "--table", "locks", "--endpoint-url", endpoint]);
        outcome(command, &credentials()).expect_code(78).expect_sentence(&[
            "endpoint",
            endpoint,
            "http://localhost:8000",
        ]);
    }
}

#[test]
fn a_credential_with_a_line_break_is_named_without_its_value() {
    let variables = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_EXECUTION_ENV"];
    for variable in variables {
        let line_break = "line break";
        for (value, why) in [(&b"AKIAX\r\ny"[..], line_break), (b"AKIA\xC2\xA0X", line_break), (b"AKIA\xFFX", "UTF-8")]
        {
            let mut command = get("http://127.0.0.1:1");
            command.env(variable, OsString::from_vec(value.to_vec()));
            let refused = Process::start(command).outcome().expect_code(78).expect_sentence(&[variable, why]);
            assert!(!refused.stderr.contains("AKIA"), "{refused:?}");
        }
    }
    // From a file with Windows line ends. The SDK trims a token.
    outcome(get("http://127.0.0.1:1"), &[("AWS_ACCESS_KEY_ID", "AKIAX\r")]).expect_code(78);
    let trimmed = outcome(get(&server(&[DENIED])), &[("AWS_SESSION_TOKEN", "token\n")]);
    trimmed.expect_code(78).expect_sentence(&["access denied"]);
}

#[test]
fn an_invalid_region_is_shown() {
    for region in ["us east", "us-east-1\r", "us-east-1é"] {
        let refused = outcome(get("http://127.0.0.1:1"), &[("AWS_REGION", region)]).expect_code(78);
        refused.expect_sentence(&["region is `us", "AWS_REGION"]);
    }
}

#[test]
fn a_credential_of_a_profile_with_a_wrong_character_is_named() {
    let place = Place::new();
    let keys = "aws_access_key_id = AKIA\u{feff}X\naws_secret_access_key = s\n";
    let role = "role_arn = arn:aws:iam::123456789012:role/locks\nsource_profile = base\n";
    for (profiles, named) in [
        (format!("[default]\n{keys}"), "default"),
        (format!("[profile ci]\n{keys}"), "ci"),
        // The SDK would sign a request for the role with them.
        (format!("[profile base]\n{keys}[profile ci]\n{role}"), "base"),
    ] {
        let command = get_with_profiles("http://127.0.0.1:1", &place, &profiles);
        let variables: &[_] = if named == "default" { &[] } else { &[("AWS_PROFILE", "ci")] };
        let refused = outcome(command, variables).expect_code(78);
        let refused = refused.expect_sentence(&["`aws_access_key_id`", &format!("`{named}`"), "line break"]);
        assert!(!refused.stderr.contains("AKIA"), "{refused:?}");
    }
}

#[test]
fn a_credential_of_a_process_with_a_line_break_is_an_error() {
    let place = Place::new();
    for (key, token, part) in [("AKIAX\\r", "t", "access key id"), ("AKIAX", "t\\n", "session token")] {
        let answer = format!(
            r#"{{"Version":1,"AccessKeyId":"{key}","SecretAccessKey":"s","SessionToken":"{token}","Expiration":"2999-01-01T00:00:00Z"}}"#
        );
        let file = place.file("answer");
        fs::write(&file, answer).unwrap();
        let command =
            get_with_profiles("http://127.0.0.1:1", &place, &format!("[default]\ncredential_process = cat {file}\n"));
        let refused = outcome(command, &[]).expect_code(78).expect_sentence(&[part, "line break"]);
        assert!(!refused.stderr.contains("AKIA"), "{refused:?}");
    }
}

#[test]
fn settings_of_retries_that_the_sdk_does_not_know_are_named() {
    let place = Place::new();
    for (variable, property, value, way_out) in [
        ("AWS_RETRY_MODE", "retry_mode", "legacy", "`standard`"),
        ("AWS_MAX_ATTEMPTS", "max_attempts", "0", "from 1"),
        ("AWS_MAX_ATTEMPTS", "max_attempts", "many", "from 1"),
    ] {
        let by_variable = outcome(get("http://127.0.0.1:1"), &[(variable, value)]).expect_code(78);
        by_variable.expect_sentence(&[variable, &format!("`{value}`"), way_out]);
        let profiles = format!("[default]\n{property} = {value}\n");
        let command = get_with_profiles("http://127.0.0.1:1", &place, &profiles);
        outcome(command, &credentials()).expect_code(78).expect_sentence(&[property, "`default`", way_out]);
    }
}

#[test]
fn an_invalid_proxy_is_named_without_its_password() {
    let wrong = ["garbage:::", "http://someone:secret@proxy:::", "ftp://proxy:21", "http://", "http://proxy:3128\r"];
    for (variable, endpoint) in [
        ("HTTPS_PROXY", "https://127.0.0.1:1"),
        ("http_proxy", "http://127.0.0.1:1"),
        ("ALL_PROXY", "http://127.0.0.1:1"),
    ] {
        for value in wrong {
            let refused = outcome(get(endpoint), &[(variable, value)]).expect_code(78);
            let refused = refused.expect_sentence(&[variable, "http://localhost:3128", "unset it"]);
            assert!(!refused.stderr.contains("secret"), "{refused:?}");
        }
    }
    let endpoint = server(&[DENIED]);
    for value in ["", "http://127.0.0.1:1", "127.0.0.1:1", "socks5h://someone:secret@127.0.0.1:1"] {
        let unused = outcome(get(&endpoint), &[("HTTPS_PROXY", value)]);
        unused.expect_code(78).expect_sentence(&["access denied"]);
    }
}

#[test]
fn an_error_of_the_network_names_host_and_proxy() {
    let host = "no-such-host.invalid";
    let unknown = outcome(get(&format!("http://{host}:8000")), &[]).expect_code(69);
    let why = format!("no connection to the host `{host}:8000`: dns error");
    unknown.expect_sentence(&["check the region, the endpoint", &why]);
    outcome(get("http://127.0.0.1:1"), &[])
        .expect_code(69)
        .expect_sentence(&["no connection to the host `127.0.0.1:1`: ", "refused"]);
    let by_proxy = |proxy: &str, named: &str| {
        let failed = outcome(get(&format!("http://{host}:8000")), &[("http_proxy", proxy)]).expect_code(69);
        let failed = failed.expect_sentence(&[&format!("the host `{host}:8000` or its proxy `{named}` (http_proxy)")]);
        assert!(!failed.stderr.contains("secret"), "{failed:?}");
    };
    by_proxy("http://someone:secret@127.0.0.1:1/", "127.0.0.1:1");
    by_proxy("no-proxy.invalid:3128", "no-proxy.invalid:3128");
}

#[test]
fn a_refusal_of_the_proxy_names_host_and_proxy() {
    const FORBIDDEN: (u16, &str) = (403, "");
    let proxy = server(&[FORBIDDEN]);
    let refused = outcome(get("https://dynamodb.example"), &[("HTTPS_PROXY", &proxy)]).expect_code(69);
    let named = format!("the host `dynamodb.example` or its proxy `{}` (HTTPS_PROXY)", &proxy["http://".len()..]);
    refused.expect_sentence(&[&named, "tunnel error"]);
}

#[test]
fn a_named_profile_overrides_the_credentials_of_the_environment() {
    let place = Place::new();
    let config = place.file("config");
    fs::write(&config, "[profile other]\naws_access_key_id = OTHER\naws_secret_access_key = other\n").unwrap();
    let (endpoint, requests) = recording_server(&[DENIED]);
    let get = |profile| {
        let mut command = get(&endpoint);
        command.args(["--profile", profile]).env("AWS_CONFIG_FILE", &config);
        Process::start(command).outcome().expect_code(78)
    };
    get("other").expect_sentence(&["access denied"]);
    assert!(requests.recv_timeout(PATIENCE).unwrap().contains("Credential=OTHER/"));
    get("nobody").expect_sentence(&["`nobody`", &config, "~/.aws/credentials"]);
}

#[test]
fn a_profile_that_is_in_no_file_is_named() {
    let place = Place::new();
    let nobody = [("AWS_PROFILE", "nobody")];
    let expected = ["`nobody`", "AWS_PROFILE", "~/.aws/credentials"];
    let without_credentials = get_with_profiles("http://127.0.0.1:1", &place, "[profile other]\n");
    outcome(without_credentials, &nobody).expect_code(78).expect_sentence(&expected);
    let mut without_region = get("http://127.0.0.1:1");
    without_region.env_remove("AWS_REGION");
    outcome(without_region, &nobody).expect_code(78).expect_sentence(&expected);
    // The profile is not needed.
    outcome(get(&server(&[DENIED])), &nobody).expect_code(78).expect_sentence(&["access denied"]);
}

#[test]
fn a_profile_without_credentials_is_named() {
    let place = Place::new();
    let command = get_with_profiles("http://127.0.0.1:1", &place, "[profile ci]\ncredential_process = false\n");
    outcome(command, &[("AWS_PROFILE", "ci")]).expect_code(78).expect_sentence(&[
        "`ci`",
        "AWS_PROFILE",
        "log in again",
    ]);
}

/// Starts a server with TLS that denies access. Returns its address, and the certificate of its authority.
fn server_with_tls() -> (String, String) {
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let trusted = authority.self_signed(&key).unwrap();
    let issuer = Issuer::new(authority, key);
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec!["localhost".to_owned()]).unwrap().signed_by(&key, &issuer).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let config = config.with_no_client_auth().with_single_cert(vec![certificate.der().clone()], key).unwrap();
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("https://localhost:{}", listener.local_addr().unwrap().port());
    thread::spawn(move || {
        for stream in listener.incoming() {
            let connection = ServerConnection::new(config.clone()).unwrap();
            let mut stream = BufReader::new(StreamOwned::new(connection, stream.unwrap()));
            let (mut line, mut length) = (String::new(), 0);
            while stream.read_line(&mut line).unwrap_or(0) > 2 {
                if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
                line.clear();
            }
            if stream.read_exact(&mut vec![0; length]).is_ok() {
                let (status, body) = DENIED;
                let head =
                    format!("HTTP/1.1 {status} X\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
                let _it_may_have_gone = stream.get_mut().write_all(format!("{head}{body}").as_bytes());
                let _it_may_have_gone = stream.get_mut().flush();
            }
        }
    });
    (address, trusted.pem())
}

#[test]
fn certificates_of_a_bundle_are_trusted() {
    let place = Place::new();
    let (endpoint, authority) = server_with_tls();
    let bundle = place.file("bundle.pem");
    // A comment, and a certificate that is none.
    fs::write(&bundle, format!("# ours\n-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n{authority}"))
        .unwrap();
    let by_variable = outcome(get(&endpoint), &[("AWS_CA_BUNDLE", bundle.as_str())]).expect_code(78);
    by_variable.expect_sentence(&["access denied"]);
    let command = get_with_profiles(&endpoint, &place, &format!("[default]\nca_bundle = {bundle}\n"));
    outcome(command, &credentials()).expect_code(78).expect_sentence(&["access denied"]);
}

#[test]
fn a_server_whose_certificate_is_not_trusted_must_be_corrected() {
    let place = Place::new();
    let (endpoint, _) = server_with_tls();
    let (_, other) = server_with_tls();
    let bundle = place.file("other.pem");
    fs::write(&bundle, other).unwrap();
    let untrusted = outcome(get(&endpoint), &[("AWS_CA_BUNDLE", bundle.as_str())]).expect_code(78);
    untrusted.expect_sentence(&["TLS failed", "AWS_CA_BUNDLE", "peer certificate"]);
    // A server without TLS.
    let without = server(&[DENIED]).replace("http://", "https://");
    outcome(get(&without), &[("AWS_CA_BUNDLE", bundle.as_str())])
        .expect_code(78)
        .expect_sentence(&["TLS failed", "`http://`"]);
}

#[test]
fn a_bundle_without_certificates_is_named() {
    let place = Place::new();
    let (missing, empty) = (place.file("missing.pem"), place.file("empty.pem"));
    fs::write(&empty, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").unwrap();
    for (bundle, why) in [(&missing, "cannot be read"), (&empty, "no valid certificate")] {
        let by_variable = outcome(get("https://127.0.0.1:1"), &[("AWS_CA_BUNDLE", bundle.as_str())]).expect_code(78);
        by_variable.expect_sentence(&["AWS_CA_BUNDLE", bundle, why]);
        let command = get_with_profiles("https://127.0.0.1:1", &place, &format!("[default]\nca_bundle = {bundle}\n"));
        outcome(command, &credentials()).expect_code(78).expect_sentence(&["`ca_bundle`", "`default`", why]);
    }
}
