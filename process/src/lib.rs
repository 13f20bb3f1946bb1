//! Parts that the commands share as processes of an operator: settings from the environment ([`settings`]), addresses
//! to listen on ([`address`]), amounts with units ([`amounts`]), and signals ([`signals`]).

pub mod address;
pub mod amounts;
pub mod settings;
pub mod signals;
mod variables;
