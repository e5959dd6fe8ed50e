//! Hidden files with data only. All other names that begin with a dot count as configuration.

/// Hidden names that no program executes anything for; matched from the first hidden component.
pub(crate) const HIDDEN_DATA: &[&str] = &[
    ".*ignore",
    ".changeset/*.md",
    ".ds_store",
    ".editorconfig",
    ".empty",
    ".env.example",
    ".env.sample",
    ".env.template",
    ".git-blame-ignore-revs",
    ".gitkeep",
    ".github/*_template.md",
    ".github/codeowners",
    ".github/funding.yml",
    ".github/issue_template/*.md",
    ".github/pull_request_template/*.md",
    ".keep",
    ".mailmap",
    ".nojekyll",
    ".placeholder",
    ".well-known/**",
];

/// Data of git that it does not act on; matched below `.git`, or below that of a submodule or work
/// tree. Everything else in `.git` is flagged.
pub(crate) const GIT_DATA: &[&str] = &[
    "*_head",
    "auto_merge",
    "branches/**",
    "commit_editmsg",
    "description",
    "head",
    "index",
    "info/exclude",
    "info/refs",
    "lfs/objects/**",
    "logs/**",
    "merge_mode",
    "merge_msg",
    "merge_rr",
    "objects/**",
    "packed-refs",
    "refs/**",
    "rr-cache/**",
    "shallow",
    "squash_msg",
    "tag_editmsg",
];
