//! Lists, inspects, renews and kills sandboxes.

use super::arguments::{ConnectArgs, ListArgs, ListFilter, RenewArgs, SandboxIdArgs};
use super::create::parse_seconds;
use super::output::{Pagination, ReadyOutput, RenewOutput, STATES, SandboxPage, rfc3339, state};
use super::{OpenSandboxState, ToolOutput, argument_error, labels};
use crate::dialect::ToolCall;
use msb_api::Summary;
use msb_spec::{Error, Kind, Result};
use std::time::Duration;

/// Default page size, as in OpenSandbox.
const USUAL_PAGE: u64 = 20;
/// Largest page size, as in OpenSandbox.
const LARGEST_PAGE: u64 = 200;

impl OpenSandboxState {
    pub(super) fn connect(&self, call: &ToolCall, arguments: &ConnectArgs) -> Result<ToolOutput> {
        let limit = parse_seconds("connect_timeout_seconds", arguments.connect_timeout_seconds)?;
        let interval = Duration::from_millis(arguments.health_check_polling_interval_ms);
        let name = self.find(&arguments.sandbox_id)?;
        if !arguments.skip_health_check {
            let status = self.api().sandbox_summary(&name)?.status;
            if matches!(state(status), "Terminated" | "Failed") {
                return Err(Error::new(Kind::State, format!("sandbox `{name}` has ended"))
                    .hint("`sandbox_get_info` shows why; `sandbox_create` creates a new one"));
            }
            self.await_health(call, &name, limit, interval)?;
        }
        self.remember(&call.caller, name.clone())?;
        ToolOutput::one(&ReadyOutput { sandbox_id: name.to_string(), info: self.info(&name)? })
    }

    pub(super) fn kill(&self, arguments: &SandboxIdArgs) -> Result<ToolOutput> {
        let name = self.find(&arguments.sandbox_id)?;
        self.api().sandbox_remove(&name, true)?;
        self.connections.forget(name.as_str());
        ToolOutput::status("killed")
    }

    pub(super) fn get_info(&self, arguments: &SandboxIdArgs) -> Result<ToolOutput> {
        let name = self.find(&arguments.sandbox_id)?;
        ToolOutput::one(&self.info(&name)?)
    }

    pub(super) fn renew(&self, arguments: &RenewArgs) -> Result<ToolOutput> {
        let left = parse_seconds("timeout_seconds", arguments.timeout_seconds)?;
        let name = self.find(&arguments.sandbox_id)?;
        let ends = self
            .api()
            .sandbox_renew(&name, Some(left))?
            .ok_or_else(|| Error::new(Kind::Protocol, format!("sandbox `{name}` has no expiry")))?;
        ToolOutput::one(&RenewOutput { expires_at: rfc3339(ends) })
    }

    pub(super) fn list(&self, call: &ToolCall, arguments: ListArgs) -> Result<ToolOutput> {
        call.tell("Listing sandboxes", 0.1);
        let wanted = ListQuery::read(arguments.filter.unwrap_or_default())?;
        let mut found: Vec<Summary> = self.api().sandbox_list()?;
        found.retain(|one| wanted.matches(one));
        found.sort_by(|a, b| b.created.cmp(&a.created).then_with(|| a.name.cmp(&b.name)));
        let total = found.len() as u64;
        let pages = total.div_ceil(wanted.size);
        let first = (wanted.page - 1).saturating_mul(wanted.size);
        let page = found.iter().skip(usize::try_from(first).unwrap_or(usize::MAX));
        let mut infos = Vec::new();
        for one in page.take(usize::try_from(wanted.size).unwrap_or(usize::MAX)) {
            match self.info(&one.name) {
                Ok(info) => infos.push(info),
                Err(error) if labels::is_gone(&error) => {}
                Err(error) => return Err(error),
            }
        }
        let pagination = Pagination {
            page: wanted.page,
            page_size: wanted.size,
            total_items: total,
            total_pages: pages,
            has_next_page: wanted.page < pages,
        };
        let result = ToolOutput::one(&SandboxPage { sandbox_infos: infos, pagination })?;
        call.tell("Done", 1.0);
        Ok(result)
    }
}

/// A validated filter, with the page.
struct ListQuery {
    filter: ListFilter,
    page: u64,
    size: u64,
}

impl ListQuery {
    fn read(filter: ListFilter) -> Result<Self> {
        let unknown = |text: &&String| !STATES.iter().any(|state| state.eq_ignore_ascii_case(text));
        if let Some(state) = filter.states.iter().flatten().find(unknown) {
            let shown = msb_spec::shown(state);
            return Err(argument_error("filter.states", format!("unknown state `{shown}`"))
                .hint(format!("the states are {}", STATES.join(", "))));
        }
        let (page, size) = (filter.page.unwrap_or(1), filter.page_size.unwrap_or(USUAL_PAGE));
        if page == 0 {
            return Err(argument_error("filter.page", "pages are counted from 1"));
        }
        if !(1..=LARGEST_PAGE).contains(&size) {
            return Err(argument_error(
                "filter.page_size",
                format!("not in 1 to {LARGEST_PAGE}: `{size}`"),
            ));
        }
        Ok(Self { filter, page, size })
    }

    fn matches(&self, one: &Summary) -> bool {
        let states = self.filter.states.as_ref();
        let state = states
            .is_none_or(|all| all.iter().any(|it| it.eq_ignore_ascii_case(state(one.status))));
        let metadata = self.filter.metadata.iter().flatten();
        let mut metadata =
            metadata.filter(|(key, value)| one.labels.get(*key) != Some(value)).take(1);
        state && metadata.next().is_none()
    }
}
