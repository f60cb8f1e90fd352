-- KEYS     see look.lua
-- returns  the type of the lock's key, the milliseconds until its end (-1: none), the start of its
--          value, or its fields and values, or its permits, or nothing if it is not a lock, the
--          companion's fence, token, owner, since and reserved, and the server's clock in
--          milliseconds since 1970
return found
