//! Parts that the commands share as processes of an operator: settings from the environment ([`settings`]), addresses
//! to listen on ([`address`]), and signals ([`signals`]).

pub mod address;
pub mod settings;
pub mod signals;
mod variables;
