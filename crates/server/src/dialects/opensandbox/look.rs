//! Looking at sandboxes, and ending them.

use super::arguments::{Connect, Filter, List, Renew, Which};
use super::create::span;
use super::shown::{Page, Pagination, Ready, Renewed, STATES, moment, state};
use super::{Said, Surface, names, wrong};
use crate::dialect::Call;
use msb_api::Summary;
use msb_spec::{Error, Kind, Result};
use std::time::Duration;

/// As OpenSandbox has it.
const USUAL_PAGE: u64 = 20;
/// As OpenSandbox has it.
const LARGEST_PAGE: u64 = 200;

impl Surface {
    pub(super) fn connect(&self, call: &Call, arguments: &Connect) -> Result<Said> {
        let limit = span("connect_timeout_seconds", arguments.connect_timeout_seconds)?;
        let interval = Duration::from_millis(arguments.health_check_polling_interval_ms);
        let name = self.find(&arguments.sandbox_id)?;
        if !arguments.skip_health_check {
            let status = self.api().sandbox_summary(&name)?.status;
            if matches!(state(status), "Terminated" | "Failed") {
                return Err(Error::new(Kind::State, format!("sandbox `{name}` has ended"))
                    .hint("`sandbox_get_info` tells why; make a new one with `sandbox_create`"));
            }
            self.await_health(call, &name, limit, interval)?;
        }
        self.keep(&call.who, name.clone())?;
        Said::one(&Ready { sandbox_id: name.to_string(), info: self.info(&name)? })
    }

    pub(super) fn kill(&self, arguments: &Which) -> Result<Said> {
        let name = self.find(&arguments.sandbox_id)?;
        self.api().sandbox_remove(&name, true)?;
        self.known.forget(name.as_str());
        Said::status("killed")
    }

    pub(super) fn get_info(&self, arguments: &Which) -> Result<Said> {
        let name = self.find(&arguments.sandbox_id)?;
        Said::one(&self.info(&name)?)
    }

    pub(super) fn renew(&self, arguments: &Renew) -> Result<Said> {
        let left = span("timeout_seconds", arguments.timeout_seconds)?;
        let name = self.find(&arguments.sandbox_id)?;
        let ends = self.api().sandbox_renew(&name, Some(left))?.ok_or_else(|| {
            Error::new(Kind::Protocol, format!("sandbox `{name}` does not say when it ends"))
        })?;
        Said::one(&Renewed { expires_at: moment(ends) })
    }

    pub(super) fn list(&self, call: &Call, arguments: List) -> Result<Said> {
        call.tell("Listing sandboxes", 0.1);
        let wanted = Wanted::read(arguments.filter.unwrap_or_default())?;
        let mut found: Vec<Summary> = self.api().sandbox_list()?;
        found.retain(|one| wanted.fits(one));
        found.sort_by(|a, b| b.created.cmp(&a.created).then_with(|| a.name.cmp(&b.name)));
        let total = found.len() as u64;
        let pages = total.div_ceil(wanted.size);
        let first = (wanted.page - 1).saturating_mul(wanted.size);
        let page = found.iter().skip(usize::try_from(first).unwrap_or(usize::MAX));
        let mut infos = Vec::new();
        for one in page.take(usize::try_from(wanted.size).unwrap_or(usize::MAX)) {
            match self.info(&one.name) {
                Ok(info) => infos.push(info),
                Err(error) if names::is_gone(&error) => {}
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
        let said = Said::one(&Page { sandbox_infos: infos, pagination })?;
        call.tell("Done", 1.0);
        Ok(said)
    }
}

/// Which sandboxes, and which page of them.
struct Wanted {
    filter: Filter,
    page: u64,
    size: u64,
}

impl Wanted {
    fn read(filter: Filter) -> Result<Self> {
        let unknown = |text: &&String| !STATES.iter().any(|state| state.eq_ignore_ascii_case(text));
        if let Some(state) = filter.states.iter().flatten().find(unknown) {
            let shown = msb_spec::shown(state);
            return Err(wrong("filter.states", format!("no sandbox is ever in state `{shown}`"))
                .hint(format!("the states are {}", STATES.join(", "))));
        }
        let (page, size) = (filter.page.unwrap_or(1), filter.page_size.unwrap_or(USUAL_PAGE));
        if page == 0 {
            return Err(wrong("filter.page", "pages are counted from 1"));
        }
        if !(1..=LARGEST_PAGE).contains(&size) {
            return Err(wrong("filter.page_size", format!("not in 1 to {LARGEST_PAGE}: `{size}`")));
        }
        Ok(Self { filter, page, size })
    }

    fn fits(&self, one: &Summary) -> bool {
        let states = self.filter.states.as_ref();
        let state = states
            .is_none_or(|all| all.iter().any(|it| it.eq_ignore_ascii_case(state(one.status))));
        let metadata = self.filter.metadata.iter().flatten();
        let mut metadata =
            metadata.filter(|(key, value)| one.labels.get(*key) != Some(value)).take(1);
        state && metadata.next().is_none()
    }
}
