-- KEYS     see look.lua
-- returns  the type of the lock's key, the milliseconds until its end (-1: none), its value or its
--          fields and values, or its permits, the companion's fence, token, owner, since and
--          reserved, and the server's clock in milliseconds since 1970
return found
