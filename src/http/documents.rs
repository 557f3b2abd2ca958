//! Pages of `docs/` that are printed from the code, so that they cannot differ from it.

use std::fmt::Write;

use crate::contract::error_code::ErrorCode;

/// `docs/ERRORS.md`: the one table.
pub fn errors() -> Result<String, std::fmt::Error> {
    let mut page = String::from(
        "# Errors\n\nPrinted from the code (`UPDATE=1 cargo nextest run --test http documents` rewrites it). Every refusal is \
         `application/problem+json`\nwith `type`, `title`, `status`, `detail`, `code`, `retryable`, `request_id` and, \
         where fields are at fault, `errors[]`\nwith a JSON pointer each. Programs go by `code`; `retryable` says whether \
         the same call may succeed later.\n\n| code | status | retryable | meaning |\n|---|---|---|---|\n",
    );
    for code in ErrorCode::ALL {
        let retryable = if code.retryable() { "yes" } else { "no" };
        writeln!(page, "| `{}` | {} | {retryable} | {} |", code.word(), code.status(), code.sentence())?;
    }
    Ok(page)
}
